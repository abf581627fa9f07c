from loader.core.machine import *
