from loader.formats.table import *
