from loader.defaults import *
