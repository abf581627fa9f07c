from sources.extras import *
