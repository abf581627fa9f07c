from loader.core.debug_log import *
