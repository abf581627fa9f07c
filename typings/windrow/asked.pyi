from loader.asked import *
