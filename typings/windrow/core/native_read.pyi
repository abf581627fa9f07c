from loader.core.native_read import *
