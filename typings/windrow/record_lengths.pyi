from loader.record_lengths import *
