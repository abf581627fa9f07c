from loader.verification.verify import *
