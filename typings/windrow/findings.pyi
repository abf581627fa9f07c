from loader.findings import *
