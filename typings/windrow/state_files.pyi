from loader.state_files import *
