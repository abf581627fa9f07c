from loader.shared import *
