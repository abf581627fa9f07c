from loader.channel import *
