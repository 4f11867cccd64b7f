/** The path of libhakmem.so for LD_PRELOAD; null where the package has none for this system. */
export const library: string | null;
/** The version of the package and of the library. */
export const version: string;
