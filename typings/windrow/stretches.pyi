from loader.stretches import *
