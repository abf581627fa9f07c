from loader.record_order import *
