from sources.s3_transport import *
