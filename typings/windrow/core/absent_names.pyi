from loader.core.absent_names import *
