from loader.kept_file import *
