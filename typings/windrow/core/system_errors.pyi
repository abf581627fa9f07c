from loader.core.system_errors import *
