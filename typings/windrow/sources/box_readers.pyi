from sources.box_readers import *
