from loader.record_sizes import *
