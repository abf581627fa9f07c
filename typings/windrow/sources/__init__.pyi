from sources import *
