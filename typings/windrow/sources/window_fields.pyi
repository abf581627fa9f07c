from sources.window_fields import *
