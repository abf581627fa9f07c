from loader.verification.targets import *
