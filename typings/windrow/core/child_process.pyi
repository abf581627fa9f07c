from loader.core.child_process import *
