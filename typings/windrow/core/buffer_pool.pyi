from loader.core.buffer_pool import *
