/* Wine 8, which Debian 12 has, lacks this library of Windows; Qt asks it for converters of old encodings, and is told that there are none. */
#define NO_SUCH_CONVERTER 4
#define NOTHING(name) __declspec(dllexport) long long name(void) { return 0; }

__declspec(dllexport) void *ucnv_open(const char *name, int *error) {
    *error = NO_SUCH_CONVERTER;
    return 0;
}

NOTHING(UCNV_TO_U_CALLBACK_SUBSTITUTE) NOTHING(UCNV_FROM_U_CALLBACK_SUBSTITUTE) NOTHING(ucnv_close) NOTHING(ucnv_reset)
NOTHING(ucnv_getMaxCharSize) NOTHING(ucnv_getName) NOTHING(ucnv_getToUCallBack) NOTHING(ucnv_getFromUCallBack)
NOTHING(ucnv_setToUCallBack) NOTHING(ucnv_setFromUCallBack) NOTHING(ucnv_fromUnicode) NOTHING(ucnv_toUnicode)
NOTHING(ucnv_countAvailable) NOTHING(ucnv_getAvailableName) NOTHING(ucnv_cbToUWriteUChars) NOTHING(ucnv_cbFromUWriteUChars)
NOTHING(ucnv_toUCountPending) NOTHING(ucnv_fromUCountPending) NOTHING(ucnv_getStandardName)

int __stdcall DllMainCRTStartup(void *module, unsigned long reason, void *reserved) { return 1; }
