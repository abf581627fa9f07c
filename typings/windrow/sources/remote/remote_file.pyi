from sources.remote.remote_file import *
