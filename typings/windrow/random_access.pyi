from loader.random_access import *
