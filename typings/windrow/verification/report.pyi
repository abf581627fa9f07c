from loader.verification.report import *
