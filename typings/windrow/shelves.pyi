from loader.shelves import *
