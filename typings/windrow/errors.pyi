from loader.errors import *
