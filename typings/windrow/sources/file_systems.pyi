from sources.file_systems import *
