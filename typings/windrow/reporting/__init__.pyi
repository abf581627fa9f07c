from loader.reporting import *
