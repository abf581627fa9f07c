from loader.sharding import *
