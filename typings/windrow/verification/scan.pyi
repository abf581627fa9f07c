from loader.verification.scan import *
