from loader.commands import *
