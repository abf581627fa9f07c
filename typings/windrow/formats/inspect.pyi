from loader.formats.inspect import *
