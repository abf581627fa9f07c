from sources.remote.file_systems import *
