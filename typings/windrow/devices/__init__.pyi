from loader.devices import *
