from sources.far_files import *
