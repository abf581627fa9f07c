from sources.window_parts import *
