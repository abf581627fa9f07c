from loader.formats.verify import *
