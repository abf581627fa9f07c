from loader.core.redaction import *
