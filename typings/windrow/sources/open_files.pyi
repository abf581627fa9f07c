from sources.open_files import *
