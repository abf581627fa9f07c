from sources.http_transport import *
