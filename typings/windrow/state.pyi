from loader.state import *
