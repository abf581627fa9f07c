from sources.secrets import *
