from loader.running import *
