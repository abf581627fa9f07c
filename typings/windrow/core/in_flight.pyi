from loader.core.in_flight import *
