<xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform">
  <xsl:key name="city" match="item" use="@city"/>
  <xsl:template match="/catalogue">
    <html><xsl:for-each select="item[generate-id() = generate-id(key('city', @city)[1])]">
      <xsl:sort select="@city"/>
      <h2><xsl:value-of select="@city"/></h2>
      <xsl:for-each select="key('city', @city)"><xsl:sort select="price" data-type="number"/>
        <p id="{@id}"><xsl:value-of select="translate(name, 'abcdefgh', 'ABCDEFGH')"/>
          <xsl:apply-templates select="tag"/><xsl:value-of select="sum(line)"/></p>
      </xsl:for-each>
    </xsl:for-each></html>
  </xsl:template>
  <xsl:template match="tag"><b><xsl:value-of select="concat(., '-', position())"/></b></xsl:template>
</xsl:stylesheet>
