from sources.scan import *
